"""Classes of the models for transformers; imported when a model is loaded."""

from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel


class RenamedConfig(GPT2Config):
    model_type = "gpt2-renamed"


class RenamedLMHeadModel(GPT2LMHeadModel):
    config_class = RenamedConfig


AutoConfig.register("gpt2-renamed", RenamedConfig)
AutoModelForCausalLM.register(RenamedConfig, RenamedLMHeadModel)
