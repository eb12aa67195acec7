"""Train with Hugging Face Accelerate.

    torchrun --standalone --nproc-per-node 2 examples/train_accelerate.py TRAIN TEST --accumulate 2
    accelerate launch examples/train_accelerate.py TRAIN TEST --checkpoint FOLDER --resume

`PreparedLoader` puts batches on the device and tells the accelerator of the last one of an epoch. Nothing is split a
second time, and `save_state` and `load_state` take the loader along.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from image_task import Pace, arguments, build_network, count_right, normalise, open_loader, say

from wdsplit.debug import param_hash
from wdsplit.integrations.accelerate import PreparedLoader


def main() -> None:
    """Train, and evaluate after each epoch."""
    parser = arguments("Train a small network with Accelerate.")
    parser.add_argument("--accumulate", type=int, default=1, help="batches whose gradients make a step")
    args = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    accelerator = Accelerator(
        cpu=not on_gpu, mixed_precision="bf16" if on_gpu else "no", gradient_accumulation_steps=args.accumulate
    )
    torch.manual_seed(args.seed)
    network = build_network(args.classes)
    model, optimizer = accelerator.prepare(network, torch.optim.AdamW(network.parameters(), lr=args.lr))
    loader = PreparedLoader(open_loader(args.train, args, shuffle=True), accelerator)
    test_loader = PreparedLoader(open_loader(args.test, args, shuffle=False), accelerator)
    accelerator.register_for_checkpointing(loader)
    pace = Pace(args)

    if args.resume and (newest := newest_checkpoint(args.checkpoint)):
        accelerator.load_state(str(newest))
        say(f"resumed in epoch {loader.epoch} at step {loader.step}, on {accelerator.num_processes} ranks")
    for epoch in range(loader.epoch, args.epochs):
        loader.set_epoch(epoch)
        model.train()
        total = torch.zeros(2, device=accelerator.device)
        for step, (images, labels, _) in loader.enumerate():
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(normalise(images)), labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            total += torch.stack([loss.detach(), torch.ones_like(loss)])
            pace.count(step + 1, is_update=accelerator.sync_gradients)
            if pace.saves:
                save(args.checkpoint, accelerator)
            if pace.stops:
                say(f"stopped in epoch {epoch} after {step + 1} steps")
                accelerator.end_training()
                return
        total = accelerator.reduce(total)
        correct, count = accelerator.reduce(count_right(model, test_loader, accelerator.device)).tolist()
        mean = float(total[0] / total[1])
        say(f"epoch {epoch}: loss {mean:.4f}, held-out accuracy {correct / count:.4f} ({correct} of {count})")
        if args.checkpoint:
            save(args.checkpoint, accelerator)
    say(f"parameters {param_hash(accelerator.unwrap_model(model))}")
    accelerator.end_training()


def save(folder: Path, accelerator: Accelerator) -> None:
    """Save a checkpoint, whole or not at all: beside the one that is there, which it then replaces."""
    new, old = folder.with_name(folder.name + ".new"), folder.with_name(folder.name + ".old")
    accelerator.save_state(str(new))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
            folder.rename(old)
        new.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    accelerator.wait_for_everyone()


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint that is whole: the old one, if a run ended while it was being replaced."""
    return next((path for path in (folder, folder.with_name(folder.name + ".old")) if path.exists()), None)


if __name__ == "__main__":
    main()
