# Sourced by the pipelines of this folder, with their settings as variables: the first argument is the folder that everything is written into.
# `--smoke` before it puts tiny stand-ins in place of weights and data, and runs all commands in one process, as importing torch takes longer than they do.
if [[ ${1:-} == --smoke ]]; then
    out=${2:?a folder to write into}
    mkdir -p "$out"
    settings=$("${PYTHON:-python}" "$here/smoke.py" make "$paper" "$out")
    eval "$settings"
    coproc SERVER { exec "${PYTHON:-python}" "$here/smoke.py" serve; }
    hydrasurgeon() {
        local code
        printf '%s\0' "$#" "$@" >&"${SERVER[1]}"
        read -r code <&"${SERVER[0]}"
        return "$code"
    }
else
    out=${1:?a folder to write into}
    mkdir -p "$out"
fi

# Scores by taylor and a circuit of each objective, $remove heads in all, into "$out/scored".
score() {
    hydrasurgeon score "$1" --method taylor --data "$found" --limit "$limit" ${naming[@]+"${naming[@]}"} ${taylor_tower[@]+"${taylor_tower[@]}"} \
        -o "$out/scored.safetensors" --quiet
    for objective in acc ood avg; do
        local foreign=(--ood "$chooses")
        if [[ $objective == acc ]]; then foreign=(); fi
        hydrasurgeon score "$out/scored" --method circuit --objective "$objective" --remove "$remove" ${tower[@]+"${tower[@]}"} \
            --data "$found" --limit "$limit" ${foreign[@]+"${foreign[@]}"} --quiet
    done
}

# The paper's Taylor: $keep heads of each layer, decided one layer after another (D.1.1). Members taylor-1 to -3 (the paper does not say how they
# differ: here in the heads drawn from the first $pool of one list) and circ-acc, -ood, -avg.
prune() {
    hydrasurgeon prune "$out/scored" --method taylor --keep "$keep" ${taylor_tower[@]+"${taylor_tower[@]}"} --data "$found" --limit "$limit" \
        --compensate none -o "$out/taylor.safetensors" --quiet
    for i in 1 2 3; do
        hydrasurgeon prune "$out/scored" --method taylor --sample "$remove/$pool" --seed "$i" --compensate none -o "$out/taylor-$i.safetensors" --quiet
    done
    for objective in acc ood avg; do
        hydrasurgeon prune "$out/scored" --method circuit --objective "$objective" --remove "$remove" --compensate none -o "$out/circ-$objective.safetensors" --quiet
    done
}

# Each of them tuned by a recipe, as tuned-taylor-1 and so on.
tune() {
    local seed=0
    for member in taylor taylor-1 taylor-2 taylor-3 circ-acc circ-ood circ-avg; do
        seed=$((seed + 1))
        hydrasurgeon finetune "$out/$member" --data "$train" --seed "$seed" "$@" -o "$out/tuned-$member.safetensors" --quiet
    done
}

# Hydra (Taylor) and Hydra (Circ) of the members with this prefix.
fuse() {
    hydrasurgeon fuse "$out/$1taylor-1" "$out/$1taylor-2" "$out/$1taylor-3" --norms average -o "$out/hydra-taylor.safetensors" --quiet
    hydrasurgeon fuse "$out/$1circ-acc" "$out/$1circ-ood" "$out/$1circ-avg" --norms average -o "$out/hydra-circ.safetensors" --quiet
}
