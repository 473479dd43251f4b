"""MiniLM-L6 on Reuters R8: head, LoRA and full fine-tuning at several ε. One JSON line per run.

    python -m bench.minilm --model FOLDER --train reuters-r8-train.tab --test reuters-r8-test.tab --mode lora --epsilon 3

The learning rates were chosen on held-out training data (`--held-out`), not on the test set.
"""

from __future__ import annotations

import argparse
import json
import time

import torch

import sordino as sd
from sordino.integrations import Privacy
from sordino.nn.sentences import SentenceClassifier, features_of


def read(path: str) -> tuple[list[str], list[str]]:
    with open(path, encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t", 1) for line in file][3:]
    rows = [row for row in rows if len(row) == 2]
    return [text for _, text in rows], [label for label, _ in rows]


def main() -> None:
    p = argparse.ArgumentParser()
    for name in ("--model", "--train", "--test"):
        p.add_argument(name, required=True)
    p.add_argument("--mode", choices=("head", "lora", "full"), required=True)
    p.add_argument(
        "--epsilon", type=float, default=0.0, help="0: no noise and no clipping to speak of, the plain figure"
    )
    p.add_argument("--length", type=int, default=48)
    p.add_argument("--lot", type=int, default=1024)
    p.add_argument("--head-steps", type=int, default=60)
    p.add_argument("--head-rate", type=float, default=3e-3)
    p.add_argument("--steps", type=int, default=10, help="of all that is trained, after the head")
    p.add_argument("--rate", type=float, default=5e-4)
    p.add_argument("--bound", type=float, default=1.0)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--held-out", action="store_true")
    a = p.parse_args()
    from transformers import AutoModel, AutoTokenizer

    began = time.process_time()
    torch.manual_seed(a.seed)
    texts, labels = read(a.train)
    test_texts, test_labels = read(a.test)
    classes = sorted(set(labels))
    if a.held_out:
        cut = len(texts) * 9 // 10
        order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(0)).tolist()
        test_texts, test_labels = [texts[i] for i in order[cut:]], [labels[i] for i in order[cut:]]
        texts, labels = [texts[i] for i in order[:cut]], [labels[i] for i in order[:cut]]
    tokenizer = AutoTokenizer.from_pretrained(a.model)

    def tokens(some: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        made = tokenizer(some, truncation=True, padding="max_length", max_length=a.length, return_tensors="pt")
        return made["input_ids"], made["attention_mask"]

    train, test = tokens(texts), tokens(test_texts)
    y = torch.tensor([classes.index(label) for label in labels])
    test_y = torch.tensor([classes.index(label) for label in test_labels])
    encoder = AutoModel.from_pretrained(a.model, add_pooling_layer=False)
    width = encoder.config.hidden_size
    model = SentenceClassifier(encoder, width, len(classes)).eval()  # no dropout: the noise is enough
    if a.mode == "lora":
        import peft

        config = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["query", "value"])
        model.encoder = peft.get_peft_model(encoder, config)
    elif a.mode == "full":
        model.embeddings_frozen()
    else:
        model.freeze_encoder()

    def loss(model: torch.nn.Module, *batch: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(*batch[:-1]), batch[-1], reduction="none")

    sampler, ledger = sd.Poisson(round(a.lot / len(y), 4)), sd.Ledger()
    steps = a.head_steps + (0 if a.mode == "head" else a.steps)
    if a.epsilon:
        query = Privacy.target(epsilon=a.epsilon, delta=1e-5, bound=a.bound).query_for(sampler, len(y), steps, a.lot)
    else:
        query = sd.NoisySum(sd.Flat(1e3), sd.Gaussian(0.0))

    def fit(part: torch.nn.Module, columns: tuple[torch.Tensor, ...], steps: int, rate: float) -> sd.Private:
        """`steps` lots with a falling rate; all phases are charged in one ledger, at one noise multiplier."""
        private = sd.Private(part, loss, query, ledger=ledger)
        optimizer = torch.optim.Adam([p for p in part.parameters() if p.requires_grad], lr=rate)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1 - k / steps)
        dataset = torch.utils.data.TensorDataset(*columns, y)
        for lot in private.draws(dataset, sampler, steps, expected_batch=a.lot, physical_batch=64):
            private.backward(lot)
            optimizer.step()
            schedule.step()
        return private

    def accuracy() -> float:
        scores = model.head(features_of(model, *test)).argmax(1)
        return round(float((scores == test_y).float().mean()), 4)

    # The head first, on features that are computed once; then everything, from there.
    private, found = fit(model.head, (features_of(model, *train),), a.head_steps, a.head_rate), vars(a)
    found |= {"head_accuracy": accuracy(), "trained": sum(p.numel() for p in model.parameters() if p.requires_grad)}
    if a.mode != "head":
        private = fit(model, train, a.steps, a.rate)
        found["accuracy"] = accuracy()
    said = private.claim(1e-5)
    found["cpu_seconds"] = round(time.process_time() - began)
    found["claimed"] = said.epsilon if isinstance(said, sd.Guarantee) else said.reason
    print(json.dumps({k: v for k, v in found.items() if k not in ("model", "train", "test")}), flush=True)


if __name__ == "__main__":
    main()
