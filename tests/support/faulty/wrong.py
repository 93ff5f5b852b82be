"""Computes in bfloat16 and calls it fp32."""

import torch

from tests.support.faulty import RightStep, contract


class Step(RightStep):
    def step(self):
        module = self.module.to(torch.bfloat16)
        with torch.inference_mode():
            self.answer = module(torch.from_numpy(self.inputs).to(torch.bfloat16)).float().numpy()


globals().update(contract("tests.support.faulty.wrong", Step))
