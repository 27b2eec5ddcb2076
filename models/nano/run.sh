#!/bin/bash
# Trains in the background, for machines where a command may run only a few minutes.
#   run.sh start [MINUTES] [TRAIN ARGUMENTS]   returns at once; progress in WORK/train.log
#   run.sh status                              the last lines of the log
#   run.sh wait SECONDS                        until the run and its evaluation are over, or SECONDS have passed; collects
#   run.sh collect                             what there is so far, in $OUT, in files of at most 16 MB
#   run.sh join PARTS FOLDER                   a model folder from collected parts
# WORK (./work) keeps the run, GPU picks the device (the second one if there are two).
cd "$(dirname "$0")" || exit 1
here=$PWD work=${WORK:-$PWD/work}
out=${OUT:-$work/out}
export CUDA_VISIBLE_DEVICES=${GPU:-$([ "$(nvidia-smi -L 2>/dev/null | wc -l)" -gt 1 ] && echo 1 || echo 0)}
export TORCHINDUCTOR_CACHE_DIR=$work/cache/inductor TRITON_CACHE_DIR=$work/cache/triton
export PYTHONUNBUFFERED=1 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

train() { # MINUTES ARGUMENTS: a run that fails goes on from its last state, without compiled parts, in the time that is left
  local minutes=$1 begin; shift; begin=$(date +%s)
  rm -f "$work/resume.pt"
  python3 train.py --minutes "$minutes" --out "$work" "$@" && return
  local left; left=$(python3 -c "print(max(1, $minutes - ($(date +%s) - $begin) / 60))")
  echo "the run failed; on without compiled parts, $left minutes"
  cp "$work/log.json" "$work/log-failed.json" 2>/dev/null
  python3 train.py --minutes "$left" --out "$work" --resume "$work/resume.pt" --no-compile "$@"
}

case ${1:-} in
  start)
    minutes=${2:-15}; shift; shift
    mkdir -p "$work" && rm -f "$work/finished"
    [ -f cache.tar.xz ] && tar xJf cache.tar.xz -C "$work" # compiled parts of an earlier run
    export -f train; export work
    setsid nohup bash -c "train $minutes $*; python3 evaluate.py --folder '$work' --master '$work/master.pt' --items 256 --out '$work/eval.json'; touch '$work/finished'" \
      > "$work/train.log" 2>&1 < /dev/null &
    echo "started, $minutes minutes, log in $work/train.log" ;;
  wait)
    for _ in $(seq "$((${2:-60} / 5))"); do [ -f "$work/finished" ] && break; sleep 5; done
    "$here/run.sh" collect > /dev/null # a machine that is taken away leaves the last parts
    "$here/run.sh" status ;;
  status) tail -n 40 "$work/train.log" | cut -c1-240; ls "$work" ;;
  collect)
    mkdir -p "$out"
    cp "$work/log.json" "$work/eval.json" "$out/" 2>/dev/null
    tail -c 200000 "$work/train.log" > "$out/train.log"
    if [ -f "$work/model.safetensors" ]; then
      split -b 16000000 -d -a 1 "$work/model.safetensors" "$out/model.part"
    fi
    if [ -f "$work/finished" ]; then
      tar cf - -C "$work" cache 2> /dev/null | xz -1 -T4 > "$out/cache.tar.xz"
      [ "$(stat -c %s "$out/cache.tar.xz")" -gt 16000000 ] && rm "$out/cache.tar.xz"
    fi
    ls -l "$out" ;;
  join)
    mkdir -p "$3"
    cat "$2"/model.part? > "$3/model.safetensors"
    cp tokenizer/* "$3/"
    python3 -c "import json, config, export; print(json.dumps(export.config_json(config.NANO), indent=1))" > "$3/config.json" ;;
  *) sed -n '2,8p' "$0" ;;
esac
