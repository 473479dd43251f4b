"""A language model with LoRA adapters, which then writes: only the adapters are trained, and only they carry noise."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

import sordino as sd

tokens = torch.randint(2, 50, (200, 8))  # one text per person
config = GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=1)
base = GPT2LMHeadModel(config)  # or AutoModelForCausalLM.from_pretrained(...)
model = get_peft_model(base, LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))

private = sd.Private(model, sd.losses.causal_lm, epsilon=8.0, delta=1e-4)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
for lot in private.draws({"input_ids": tokens, "labels": tokens}, batch_size=20, epochs=1):
    private.backward(lot)
    optimizer.step()
print(private.claim(delta=1e-4))
print(model.eval().generate(input_ids=torch.tensor([[5, 7]]), max_new_tokens=4, pad_token_id=1).tolist())
