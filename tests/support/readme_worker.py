"""Runs blocks of the README and of pages on frameworks as a user pastes them, on the CPU; writes what they got to OUT.

    cd FOLDER_OF_DATA; python readme_worker.py OUT

They leave the user's own part out (`...`, `augment`, `model`, ...): it is put in here, and numbers that would
take too long are made small. Each text that is replaced must stand in its block.
"""

import json
import re
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

import wdsplit

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "docs" / "lightning.md", ROOT / "docs" / "hugging-face.md"]
NUM_CLASSES, NUM_KNOWN = 64, 22
"""Of the classes, the models know the first: what they get right is known in advance."""
SMALL = {"batch_size=256": "batch_size=8", "num_workers=4": "num_workers=0"}
STEP = "train(names, images, labels)\n"


def paste(text, changes, names):
    """Run the block that holds a text.

    Args:
        text: What only this block holds.
        changes: What stands in the block: what is put in its place.
        names: The names that the user's program has; those of the block are added.
    """
    pages = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    blocks = re.findall(r"^```python\n(.*?)^```", pages, re.M | re.S)
    (block,) = [block for block in blocks if text in block]
    for shown, instead in changes.items():
        assert shown in block, f"the block with {text!r} has no {shown!r}"
        block = block.replace(shown, instead)
    names |= {"__name__": "__main__", "names": names}
    exec(compile(block, f"the block with {text}", "exec"), names)


def to_tensor(image):
    """Return the pixels, each of which is the number of the sample: the image is grey, 4 times as bright."""
    return torch.tensor(list(image.convert("L").tobytes())).float() / 4


RESIZED = "wdsplit.resized(8, mean=(0, 0, 0), std=(4 / 255, 4 / 255, 4 / 255))"
"""Makes the same pixels as `to_tensor`, three times."""


class Model(torch.nn.Linear):
    def forward(self, images):
        return super().forward(images[:, 0].flatten(1) if images.dim() == 4 else images)


def new_model():
    """Return a model that knows the first classes, and learns next to nothing."""
    model = Model(64, NUM_CLASSES)
    known = torch.arange(NUM_KNOWN)
    with torch.no_grad():
        model.weight.zero_()[:NUM_KNOWN] = 2 * known[:, None] / 64
        model.bias.fill_(-1e4)[:NUM_KNOWN] = -known.square().float()
    return model


def new_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=1e-6)


def new_program(**more):
    """Return what a user's program has before the block: a model, its optimizer, a step; and no labels seen."""
    own = {"torch": torch, "augment": to_tensor, "to_tensor": to_tensor, "train": train, "seen": []}
    own |= {"model": new_model(), "new_model": new_model, "new_optimizer": new_optimizer}
    return {**own, "optimizer": new_optimizer(own["model"]), **more}


def train(names, images, labels):
    """Train a step with the names' model, and note the labels."""
    loss = cross_entropy(names["model"](images), labels)
    accelerator = names.get("accelerator")
    loss.backward() if accelerator is None else accelerator.backward(loss)
    names["optimizer"].step()
    names["optimizer"].zero_grad()
    names["seen"].append(labels.tolist())


def open_train():
    dataset = wdsplit.Dataset("data/train", seed=0).decode("pil")
    return dataset.map_dict(jpg=to_tensor).to_tuple("jpg", "cls")


def loops():
    """Train with checkpoints in mid-epoch; go on from the last one; evaluate."""
    first = new_program()
    changes = {", 90)": ", 2)", "step % 1000 == 999": "step == 3"}
    changes['wdsplit.resized(224, crop="random", flip=True, mean=MEAN, std=STD)'] = RESIZED
    changes["            ...  # your step, with your model and optimizer\n"] = f"            {STEP}"
    paste("step % 1000 == 999", {**SMALL, **changes}, first)
    again = new_program(loader=wdsplit.Loader(open_train(), batch_size=8))
    loop = f"    for images, labels in loader:\n        {STEP}"
    paste("# on every rank; their number may differ", {"    ...\n": loop, ", 90)": ", 2)"}, again)
    evaluated = new_program(wdsplit=wdsplit, hits=0)
    changes = {'wdsplit.resized(224, crop="center", mean=MEAN, std=STD)': RESIZED, "batch_size=256": "batch_size=8"}
    paste("hits += ((model(images)", changes, evaluated)
    return {"seen": first["seen"], "resumed": again["seen"], "hits": int(evaluated["hits"])}


def accelerate():
    """Train for two epochs with Accelerate."""
    program = new_program(dataset=open_train())
    changes = {"            ...\n": f"            {STEP}", ", 90)": ", 2)", "Accelerator(": "Accelerator(cpu=True, "}
    paste("import PreparedLoader", {**SMALL, **changes}, program)
    return {"seen": program["seen"], "epoch": program["loader"].epoch}


MODULE = """
    def __init__(self):
        super().__init__()
        self.layer = new_model()
        self.accuracy = MeanMetric()

    def forward(self, images):
        return self.layer(images)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        seen.append(labels.tolist())
        return torch.nn.functional.cross_entropy(self(images), labels)

    def configure_optimizers(self):
        return new_optimizer(self)
"""


def lightning():
    """Train for two epochs with Lightning; run the same program once more, for a third epoch."""
    on_cpu = {"devices=8": "devices=1, accelerator='cpu', logger=False, enable_progress_bar=False"}
    module = {"    ...  # in __init__: self.accuracy = MeanMetric()\n": MODULE}
    result = {"seen": [], "accuracies": []}
    for num_epochs in (2, 3):
        program = new_program()
        changes = {**SMALL, **on_cpu, **module, "max_epochs=90": f"max_epochs={num_epochs}"}
        paste("import WdsplitDataModule", changes, program)
        result["seen"].append(program["seen"])
        result["accuracies"].append(float(program["trainer"].callback_metrics["accuracy"]))
    return result


class Classifier(BertForSequenceClassification):
    """A small model of Transformers; notes the labels that it is given to train on."""

    def __init__(self, vocabulary):
        sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
        super().__init__(BertConfig(vocab_size=vocabulary, num_labels=NUM_CLASSES, **sizes))
        self.seen = []

    def forward(self, input_ids, attention_mask, labels):
        if self.training:
            self.seen.append(labels.tolist())
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, labels=labels)


def new_tokenizer():
    """Return a tokenizer of the words that the texts are made of: a few letters."""
    words = {"[PAD]": 0, "[UNK]": 1, "row": 2, "a": 3}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")


def count(prediction):
    return {"count": len(prediction.label_ids)}


def transformers():
    """Train for an epoch with the Trainer; go on from its checkpoint for a second one; evaluate."""
    small = {"per_device_train_batch_size=32": "per_device_train_batch_size=8"}
    small |= {"dataloader_num_workers=4": "dataloader_num_workers=0, use_cpu=True, report_to=[], disable_tqdm=True"}
    result = {"seen": []}
    for num_epochs, more in ((1, {}), (2, {".train()": ".train(resume_from_checkpoint=True)"})):
        tokenizer = new_tokenizer()
        program = new_program(model=Classifier(len(tokenizer)), tokenizer=tokenizer, metrics=count)
        changes = {**small, **more, "num_train_epochs=3": f"num_train_epochs={num_epochs}"}
        paste("import WdsplitTrainer", changes, program)
        result["seen"].append(program["model"].seen)
    return {**result, "count": program["trainer"].evaluate()["eval_count"]}


TASKS = (loops, accelerate, transformers, lightning)


def main(out):
    results = {task.__name__: task() for task in TASKS}
    Path(out).write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
