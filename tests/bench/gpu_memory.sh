#!/bin/sh
# Quotas, predictions and rates on a GPU: four towers at full depth, fp32 and bf16, with 2, 4 and
# 8 GiB and without a quota. About five minutes on an H200. To be run by hand:
#
#   tests/bench/gpu_memory.sh EXECUTOR MAKE_MODEL FOLDER [GPU-uuid]
#
# EXECUTOR and MAKE_MODEL are the binaries orchestrator-executor and make_model; FOLDER receives
# models (about 2 GB, kept), profiles and readings. The table goes to stdout. The peers' figures:
# transformers_memory.py, in the same session.
set -eu

if [ $# -lt 3 ]; then
    sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
executor=$1 make_model=$2 folder=$3
here=$(cd "$(dirname "$0")" && pwd)
gpu=${4:-$(nvidia-smi --query-gpu=uuid --format=csv,noheader | head -n 1)}
mkdir -p "$folder/models"

used() { # MiB in use on the device now
    nvidia-smi --id="$gpu" --query-gpu=memory.used --format=csv,noheader,nounits
}

# Without a quota: nine tenths of what is free.
free=$(nvidia-smi --id="$gpu" --query-gpu=memory.free --format=csv,noheader,nounits)
unlimited=$((free * 9 / 10 * 1048576))

# One tower, precision and quota; the batches straddle 50,000 tokens, where the rate is flat.
measure() { # shape precision quota-name bytes rows
    name=$folder/$1.$2.$3
    used >"$name.smi"
    nvidia-smi --id="$gpu" --query-gpu=memory.used --format=csv,noheader,nounits -lms 100 \
        >>"$name.smi" &
    watch=$!
    # A refusal is a result, too.
    timeout 60 "$executor" profile --model "$folder/models/$1" --component vision \
        --precision "$2" --device "$gpu" --quota "$4" --rows "$5" \
        >"$name.json" 2>"$name.err" || : >"$name.json"
    kill "$watch" 2>/dev/null || :
    wait "$watch" 2>/dev/null || :
}

started=$(date +%s)
for shape in vit_b32 vit_b16 vit_l14 vit_l14_336; do
    case $shape in
    vit_b32) layers=12 rows=128,512,1000,2000 ;;
    vit_b16) layers=12 rows=32,128,256,512 ;;
    vit_l14) layers=24 rows=32,96,192,384 ;;
    vit_l14_336) layers=24 rows=16,48,88,176,256 ;;
    esac
    if [ ! -f "$folder/models/$shape/done" ]; then
        "$make_model" "$shape" "$layers" "$folder/models/$shape" bf16
        : >"$folder/models/$shape/done"
    fi
    for precision in fp32 bf16; do
        for quota in 2 4 8; do
            measure "$shape" "$precision" "$quota" $((quota << 30)) "$rows"
        done
        measure "$shape" "$precision" none "$unlimited" "$rows"
    done
    echo "$shape: $(($(date +%s) - started)) s so far" >&2
done
python3 "$here/gpu_memory.py" "$folder"
