"""Trains in PyTorch what gpt2 trains: the same first parameters, rows, rates and AdamW. Compares the losses.
  gpt2 --tokens FILE --steps 0 --save first.safetensors
  gpt2 --tokens FILE --load first.safetensors > ours
  compare.py --tokens FILE --load first.safetensors --against ours
  torchrun --nproc-per-node 2 compare.py ...     on two GPUs, by DistributedDataParallel
"""
import argparse
import contextlib
import json
import math
import os
import re
import statistics
import time

import torch
from torch import nn
from torch.nn import functional


def arguments():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--tokens", required=True)
    a.add_argument("--load", required=True)
    a.add_argument("--against", help="what gpt2 printed")
    for name, value in {"heads": 12, "batch": 8, "accumulate": 1, "steps": 200, "warmup": 10, "seed": 1, "every": 10,
                        "rate": 6e-4, "decay": 0.1, "clip": 1.0}.items():
        a.add_argument("--" + name, type=type(value), default=value)
    a.add_argument("--dtype", choices=("fp32", "tf32", "bf16"), default="fp32")
    a.add_argument("--fused", action="store_true", help="AdamW in one launch for many parameters")
    a.add_argument("--compile", action="store_true")
    return a.parse_args()


def parameters(path):
    """The parameters of a safetensors file, by name. An optimizer's state is left out."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = bytearray(file.read())
    return {name: torch.frombuffer(data[slice(*of["data_offsets"])], dtype=torch.float32).reshape(of["shape"])
            for name, of in header.items() if name.startswith("transformer.")}


class Model(nn.Module):
    def __init__(self, values, heads):
        super().__init__()
        self.heads = heads
        for name, value in values.items():
            *path, last = name.split(".")
            at = self
            for part in path:
                at = at._modules.setdefault(part, nn.Module())
            at.register_parameter(last, nn.Parameter(value))

    def forward(self, inputs, targets):
        def product(layer, x):
            return torch.addmm(layer.bias, x, layer.weight)
        def norm(layer, x):
            return functional.layer_norm(x, layer.weight.shape, layer.weight, layer.bias, 1e-5)
        all, rows = self.transformer, inputs.shape[0]
        x = functional.embedding(inputs, all.wte.weight) + all.wpe.weight[:inputs.shape[1]]
        x = x.view(-1, x.shape[2])
        for block in all.h.children():
            q, k, v = (part.view(rows, -1, self.heads, x.shape[1] // self.heads).transpose(1, 2)
                       for part in product(block.attn.c_attn, norm(block.ln_1, x)).split(x.shape[1], 1))
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
            x = x + product(block.attn.c_proj, seen)
            hidden = functional.gelu(product(block.mlp.c_fc, norm(block.ln_2, x)), approximate="tanh")
            x = x + product(block.mlp.c_proj, hidden)
        vocabulary = all.wte.weight.shape[0]
        weight = functional.pad(all.wte.weight, (0, 0, 0, -vocabulary % 128))
        logits = functional.linear(norm(all.ln_f, x), weight)[:, :vocabulary]
        return functional.cross_entropy(logits.float(), targets.reshape(-1))


def main():
    o = arguments()
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    on_gpu = torch.cuda.is_available()
    here = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(here)
        torch.backends.cuda.matmul.allow_tf32 = o.dtype == "tf32"
    if size > 1:
        torch.distributed.init_process_group("nccl" if on_gpu else "gloo")
    own = Model(parameters(o.load), o.heads).to(here)
    own.forward = torch.autocast(here.type, torch.bfloat16, enabled=o.dtype == "bf16")(own.forward)
    net = nn.parallel.DistributedDataParallel(own, device_ids=[here.index] if on_gpu else None) if size > 1 else own
    run = torch.compile(net) if o.compile else net
    groups = [{"params": [p for p in own.parameters() if (p.dim() > 1) == matrix],
               "weight_decay": o.decay if matrix else 0} for matrix in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=o.rate, betas=(0.9, 0.95), **({"fused": True} if o.fused else {}))
    context = own.transformer.wpe.weight.shape[0]
    data, text = bytearray(open(o.tokens, "rb").read()), not o.tokens.endswith(".bin")
    tokens = torch.frombuffer(data, dtype=torch.uint8 if text else torch.int16, offset=0 if text else 1024)
    tokens = tokens.long() & 0xffff
    training, validation = tokens[:-(len(tokens) // 10)], tokens[-(len(tokens) // 10):]

    def batch(of, first):  # the order of the program's fill()
        moved = o.seed * 0x9e3779b97f4a7c15 % 2**64 >> 32
        begins = [(r * 2654435769 + moved) % 2**32 * (len(of) - context) >> 32 for r in range(first, first + o.batch)]
        rows = torch.stack([torch.stack([of[b + shift:b + shift + context] for b in begins]) for shift in (0, 1)])
        return (rows.pin_memory() if on_gpu else rows).to(here, non_blocking=True)

    total, began, told, lines = torch.zeros((), device=here), time.monotonic(), 0, {}
    for step in range(o.steps):
        optimizer.zero_grad()
        for part in range(o.accumulate):
            with net.no_sync() if size > 1 and part + 1 < o.accumulate else contextlib.nullcontext():
                number = (step * size + rank) * o.accumulate + part
                loss = run(*batch(training, number * o.batch)) / o.accumulate
                loss.backward()
                total += loss.detach()
        nn.utils.clip_grad_norm_(own.parameters(), o.clip)
        done = min((step - o.warmup) / max(o.steps - o.warmup, 1), 1)
        rate = o.rate * ((step + 1) / o.warmup if step < o.warmup else 0.55 + 0.45 * math.cos(math.pi * done))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        if (step + 1) % o.every == 0 or step + 1 == o.steps:
            if size > 1:
                torch.distributed.all_reduce(total)
            mean, now = total.item() / size / (step + 1 - told), time.monotonic()
            ms = (now - began) * 1e3 / (step + 1 - told)
            if rank == 0:
                print(f"step {step + 1:6}  loss {mean:.5f}  {ms:9.2f} ms  "
                      f"{o.batch * context * o.accumulate * size / ms * 1e3:10.0f} tokens/s  "
                      f"{torch.cuda.memory_reserved() / 2**20 if on_gpu else 0:7.0f} MiB reserved", flush=True)
            began, told, lines[step + 1] = now, step + 1, (mean, ms)
            total.zero_()
    with torch.no_grad():
        losses = [own(*batch(validation, i * o.batch)).item() for i in range(max(32 // o.batch, 1))]
    if rank == 0:
        print(f"validation loss {statistics.mean(losses):.5f}")
        if o.against:
            compare(lines, open(o.against).read())
    if size > 1:
        torch.distributed.destroy_process_group()


def compare(lines, said):
    found = re.findall(r"^step +(\d+)  loss ([\d.]+) +([\d.]+) ms", said, re.M)
    ours = {int(step): (float(loss), float(ms)) for step, loss, ms in found}
    both = sorted(lines.keys() & ours.keys())
    apart = [abs(lines[s][0] - ours[s][0]) for s in both]
    medians = [statistics.median(of[s][1] for s in both[1:] or both) for of in (ours, lines)]
    print(f"{len(both)} losses: {max(apart):.5f} apart at most, {statistics.mean(apart):.5f} on average; "
          f"weir {medians[0]:.2f} ms, PyTorch {medians[1]:.2f} ms a step, {medians[1] / medians[0]:.3f} times")


main()
