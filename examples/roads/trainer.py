"""Hugging Face's Trainer with LoRA of peft, private: a small BERT learns to tell two kinds of sentences apart."""

import tempfile

import torch
import transformers
from peft import LoraConfig, get_peft_model

from sordino.integrations import Privacy
from sordino.integrations.transformers import Trainer

torch.manual_seed(0)
words = torch.randint(5, 100, (300, 12))
kinds = torch.randint(0, 2, (300,))
words[:, 0] = 1 + kinds
records = [
    {"input_ids": w, "attention_mask": torch.ones_like(w), "labels": y} for w, y in zip(words, kinds, strict=True)
]

config = transformers.BertConfig(
    vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, num_labels=2
)
model = transformers.BertForSequenceClassification(
    config
)  # your own: AutoModelForSequenceClassification.from_pretrained(…)
model = get_peft_model(model, LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"]))

arguments = transformers.TrainingArguments(
    tempfile.mkdtemp(),
    per_device_train_batch_size=25,  # processed at once
    gradient_accumulation_steps=2,  # × 25 records: the expected lot
    num_train_epochs=4,
    learning_rate=1e-2,
    logging_steps=20,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
trainer = Trainer(
    model,
    arguments,
    train_dataset=records[:250],
    eval_dataset=records[250:],
    compute_metrics=lambda found: {"accuracy": (found.predictions.argmax(1) == found.label_ids).mean()},
    privacy=Privacy.target(epsilon=8.0, delta=1e-4, bound=1.0),
)
trainer.train()
print(f"accuracy {trainer.evaluate()['eval_accuracy']:.2f}")
print(trainer.claim())
