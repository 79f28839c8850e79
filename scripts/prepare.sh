#!/usr/bin/env bash
# Fetches what training on GPT-2's tokens needs, checks it, and makes a first data set:
#   bash scripts/prepare.sh gpt2 [FOLDER]    FOLDER/vocab.bpe, as OpenAI publishes it; Shakespeare's plays, as
#   karpathy/char-rnn has them (1.1 MB); their tokens: FOLDER/shakespeare.{train,validation}.bin [prepared]
# PREPARE_FROM=URL: a mirror of both files. Without a network, copy vocab.bpe and input.txt into FOLDER first.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "${1:-}" != gpt2 ] || [ $# -gt 2 ]; then
    sed -n '2,5s/^# //p' "scripts/${0##*/}"
    exit $([ "${1:-}" = --help ] || [ "${1:-}" = -h ] && echo 0 || echo 1)
fi
folder=${2:-prepared}  # beside this script, unless the path is absolute
mkdir -p "$folder"
trap 'rmdir "$folder" 2> /dev/null || true' EXIT  # if nothing came

fetched() {  # fetched FILE SHA256 URL: FILE is there, as its publisher has it
    local file=$folder/$1 url=${PREPARE_FROM:+$PREPARE_FROM/$1}
    url=${url:-$3}
    if [ ! -f "$file" ]; then
        echo "== $url"
        python3 - "$url" "$file.partial" <<'PYTHON' || { rm -f "$file.partial"; exit 1; }
import shutil, sys, urllib.request
try:
    with urllib.request.urlopen(sys.argv[1], timeout=60) as there, open(sys.argv[2], "wb") as here:
        shutil.copyfileobj(there, here)
except (OSError, ValueError) as e:
    here = sys.argv[2].removesuffix(".partial")
    do = "free some space" if getattr(e, "errno", 0) == 28 else \
        f"without a network, copy the file to {here} from elsewhere"
    sys.exit(f"prepare.sh: {sys.argv[1]}: {e}: {do} and run this again")
PYTHON
        mv "$file.partial" "$file"
    fi
    local sum
    sum=$(sha256sum < "$file")
    if [ "${sum%% *}" != "$2" ]; then
        echo "prepare.sh: $file: has SHA-256 ${sum%% *}, expected $2: remove it and run this again" >&2
        exit 1
    fi
}
fetched vocab.bpe 1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5 \
    https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe
fetched input.txt 86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed \
    https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt

bash scripts/install.sh
make -s tokenize
./tokenize --vocabulary "$folder/vocab.bpe" --validation 0.1 --output "$folder/shakespeare" \
    "$folder/input.txt"
quoted=$(printf %q "$folder")
echo "== what to try next
  train:     ./train_gpt --train $quoted/shakespeare.train.bin \\
                         --validation $quoted/shakespeare.validation.bin --layers 4 --hidden 128 \\
                         --heads 4 --sequence 128 --steps 300 --learning-rate 3e-3 --save $quoted/checkpoints
  generate:  ./train_gpt --resume $quoted/checkpoints --generate 'JULIET:'"
