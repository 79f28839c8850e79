#!/usr/bin/env bash
# Downloads files of a crawl, from a list as Common Crawl publishes it (warc.paths.gz: a path or URL a line):
#   bash scripts/crawl.sh LIST FOLDER [N]    LIST: a file or a URL; N: only so many, spread over the list
# aria2 resumes what is partial and retries what fails. A file appears in FOLDER when it has the length that
# the server announced and, if its name ends in .gz, gzip's checksums are right; run this again for the rest.
# CRAWL_RATE=20M bounds the bytes a second (0: no bound), CRAWL_CONNECTIONS=4 are used at once, and paths are
# relative to CRAWL_FROM=https://data.commoncrawl.org. ./corpus extract checks each WARC record's own digest.
set -euo pipefail
if [ $# -lt 2 ] || [ $# -gt 3 ]; then
    sed -n '2,8s/^# //p' "$0"
    exit 1
fi
list=$1 folder=$2 count=${3:-0} from=${CRAWL_FROM:-https://data.commoncrawl.org}
[[ $count =~ ^(0|[1-9][0-9]*)$ ]] ||
    { echo "crawl.sh: $count files: give a number, or leave it out for all" >&2; exit 1; }
command -v aria2c > /dev/null ||
    { echo "crawl.sh: requires aria2: scripts/install.sh --with-corpus" >&2; exit 1; }
mkdir -p "$folder/partial"
fetch() {
    aria2c --quiet --console-log-level=error --dir="$folder/partial" --continue=true \
        --auto-file-renaming=false --allow-overwrite=true --max-tries="${CRAWL_TRIES:-8}" \
        --retry-wait="${CRAWL_PAUSE:-10}" --timeout=60 --max-connection-per-server=1 --split=1 \
        --max-concurrent-downloads="${CRAWL_CONNECTIONS:-4}" \
        --max-overall-download-limit="${CRAWL_RATE:-20M}" "$@"
}
case $list in
    http://* | https://*)
        rm -f "$folder/partial/$(basename "$list")"*  # every crawl's list has one name
        fetch --out="$(basename "$list")" "$list" ||
            { echo "crawl.sh: $list: cannot be fetched" >&2; exit 1; }
        list=$folder/partial/$(basename "$list")
        ;;
esac

# the URLs of the chosen files that are not here yet
zcat -f -- "$list" | sed -e 's/\r$//' -e '/^#/d; /^$/d' |
    CRAWL_FROM=${from%/} awk -v n="$count" '
        !/^https?:/ { sub("^/*", ""); $0 = ENVIRON["CRAWL_FROM"] "/" $0 }
        { all[NR] = $0 }
        END { if (!n || n > NR) n = NR; for (i = 0; i < n; i++) print all[int(i * NR / n) + 1] }' \
        > "$folder/partial/urls"
[ -s "$folder/partial/urls" ] || { echo "crawl.sh: $list: names no file" >&2; exit 1; }
sed 's|.*/||' "$folder/partial/urls" | sort | uniq -d | { ! grep .; } ||
    { echo "crawl.sh: $list: these names stand for several files" >&2; exit 1; }
while read -r url; do
    [ -e "$folder/${url##*/}" ] || echo "$url"
done < "$folder/partial/urls" > "$folder/partial/wanted"
# under the names that the URLs end in: aria2 itself would decode or cut them
awk -F/ '{ print; print "  out=" $NF }' "$folder/partial/wanted" > "$folder/partial/named"
[ ! -s "$folder/partial/wanted" ] || fetch --input-file="$folder/partial/named" || true

# (2: there is something behind the last member, which nothing reads)
is_damaged() {
    gzip -t "$1" 2> /dev/null
    [ $? = 1 ]
}

# complete files move to the folder
missing=0
while read -r url; do
    name=${url##*/} part=$folder/partial/${url##*/}
    if [ ! -e "$part" ] || [ -e "$part.aria2" ]; then
        echo "crawl.sh: $url: is not here" >&2
        missing=$((missing + 1))
    elif [[ $name == *.gz ]] && is_damaged "$part"; then
        echo "crawl.sh: $url: is damaged, and is fetched anew the next time" >&2
        rm "$part"
        missing=$((missing + 1))
    else
        mv "$part" "$folder/$name"
    fi
done < "$folder/partial/wanted"
all=$(wc -l < "$folder/partial/urls")
echo "$((all - missing)) of $all files are in $folder"
[ $missing = 0 ] || { echo "crawl.sh: run it again for the other $missing" >&2; exit 1; }
