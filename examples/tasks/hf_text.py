"""Sentences with a transformer: what the tokenizer returns is given to `draws` as it is, together with the labels."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

import sordino as sd

vocabulary = {"[PAD]": 0, "[UNK]": 1, "a": 2, "good": 3, "bad": 4, "film": 5}
words = Tokenizer(models.WordLevel(vocabulary, "[UNK]"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")  # or AutoTokenizer
encoded = tokenizer(["a good film", "a bad long film"] * 100, padding=True, return_tensors="pt")
encoded["labels"] = torch.tensor([1, 0] * 100)
config = BertConfig(vocab_size=6, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
model = BertForSequenceClassification(config)  # or AutoModelForSequenceClassification.from_pretrained(...)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
private = sd.Private(model, sd.losses.classification, epsilon=8.0, delta=1e-4)
for lot in private.draws(encoded, batch_size=20, epochs=1):
    private.backward(lot)
    optimizer.step()
print(private.claim(delta=1e-4))
