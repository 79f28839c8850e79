// stopwords.h   frequent words of written English, as in reports and encyclopedias: main text is full of
//               them; menus, and what speaks to "you", are not
#pragma once

constexpr char english_stopwords[] =
    "a able about according across after again against age air all almost along also although "
    "american among an and another any appeared appointed april are area around as at august "
    "available average back based be became because become been before began being best between book "
    "born both building built business but by called came can century character children city close "
    "college common community company considered continued control could country created current "
    "currently day days death december described designed developed development did died different "
    "district do does down due during each early east either end english established even eventually "
    "every family famous father february few field film final first five followed following for form "
    "formed former found founded four from full further game games gave general get given good "
    "government great group had has have having he head held help her high him himself his history "
    "home house how however i if important in include included includes including international into "
    "is it its january joined july june just king known land large largest last late later law lead "
    "leading league led left less life like line live living local located long lost made main major "
    "make making many march married may member members men military million modern more most moved "
    "much music must name named national near never new next no north not november now number "
    "october of off official often old on once one only open opened or order original originally "
    "other out over own part party people per performed period place play played player playing "
    "point political popular population position power president produced production program public "
    "published rather received record recorded released remained research result returned right "
    "river role run said same school season second see seen september series served service set "
    "several she short should show side similar since single six small so social sold some son south "
    "special started state states station still story students such support system take taken team "
    "term than that the their them then there these they third this those though three through "
    "throughout time times title to together took top total town two under united university until "
    "up upon us use used using usually various version very village war was water way we well went "
    "were west western what when where whether which while who will with within without won work "
    "worked working works world would written wrote year years york you young";
