"""Fine-tuning of pretrained text encoders, with every choice made by public numbers."""

from sordino.finetuning.finetune_texts import FineTuned, finetune
from sordino.finetuning.plan import Plan, make_plan

__all__ = ["FineTuned", "Plan", "finetune", "make_plan"]
