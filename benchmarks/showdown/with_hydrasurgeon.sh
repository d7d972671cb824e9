# Our own: `build` within a budget of time, a promise, answers.
hydrasurgeon build "$START" --data "$TRAIN" --val "$VAL" --budget time=0.2,1 --max-minutes "$MINUTES" --seed "$SEED" -o "$OUT/front"
hydrasurgeon calibrate "$OUT/front/time-$TIME.safetensors" --data "$VAL" --risk $RISK -o "$OUT/ready"
hydrasurgeon predict "$OUT/ready" --data "$TEXTS" -o "$OUT/answers.csv"
