"""The benchmark: published sources, evidence by annotation, one tokenised view per tokenizer, and their audit."""
