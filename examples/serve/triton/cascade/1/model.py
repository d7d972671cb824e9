"""Triton's business logic of a cascade: every row runs through `first`, those that it lets go on through `rest`."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb

ANSWERS = ("probabilities", "uncertainty", "ood_score", "unfamiliar")


def infer(model: str, tensors: dict[str, Any], outputs: list[str]) -> dict[str, Any]:
    request = pb.InferenceRequest(
        model_name=model,
        inputs=[pb.Tensor(name, values) for name, values in tensors.items()],
        requested_output_names=outputs,
    )
    response = request.exec()
    if response.has_error():
        raise pb.TritonModelException(response.error().message())
    return {name: pb.get_output_tensor_by_name(response, name).as_numpy() for name in outputs}


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        import json

        parameters = json.loads(args["model_config"])["parameters"]
        self.inputs = parameters["inputs"]["string_value"].split()
        self.carried = parameters["carried"]["string_value"].split()

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> Any:
        inputs = {
            name: pb.get_input_tensor_by_name(request, name).as_numpy() for name in self.inputs
        }
        made = [name for name in self.carried if name not in self.inputs]
        known = {**inputs, **infer("first", inputs, [*ANSWERS, "goes_on", *made])}
        going = known["goes_on"]
        answers = {name: known[name].copy() for name in ANSWERS}
        if going.any():
            more = infer("rest", {name: known[name][going] for name in self.carried}, [*ANSWERS])
            for name, values in more.items():
                answers[name][going] = values
        answers["went_on"] = going
        return pb.InferenceResponse([pb.Tensor(name, values) for name, values in answers.items()])
