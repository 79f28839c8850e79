# For the launchers: resume_from_save OPTION… sets `save` to the folder after --save, and `resume` to the
# option that goes on from it, if it holds checkpoints.
resume_from_save() {
    local i next
    save=
    resume=()
    for ((i = 1; i < $#; i++)); do
        next=$((i + 1))
        if [ "${!i}" = --save ]; then save=${!next}; fi
    done
    if [ -n "$save" ] && compgen -G "$save/step-*/index.json" > /dev/null; then resume=(--resume "$save"); fi
}
