"""What transformers must know of the models; imported when one is loaded."""

from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel


class RenamedConfig(GPT2Config):
    model_type = "gpt2-renamed"


class RenamedLMHeadModel(GPT2LMHeadModel):
    config_class = RenamedConfig


AutoConfig.register("gpt2-renamed", RenamedConfig)
AutoModelForCausalLM.register(RenamedConfig, RenamedLMHeadModel)
