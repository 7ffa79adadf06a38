"""A classifier around torch's own `nn.TransformerEncoder`, as users write them, known to transformers."""

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput


class TorchConfig(PretrainedConfig):
    model_type = "torch-classifier"

    def __init__(
        self,
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=24,
        max_position_embeddings=32,
        hidden_act="gelu",
        norm_first=True,
        **others,
    ):
        self.vocab_size, self.hidden_size, self.intermediate_size = vocab_size, hidden_size, intermediate_size
        self.num_hidden_layers, self.num_attention_heads = num_hidden_layers, num_attention_heads
        self.max_position_embeddings, self.hidden_act, self.norm_first = max_position_embeddings, hidden_act, norm_first
        super().__init__(**{"pad_token_id": 0, **others})


class TorchPreTrained(PreTrainedModel):
    config_class = TorchConfig
    base_model_prefix = "body"

    def get_input_embeddings(self):
        return self.base_model.words

    def _init_weights(self, module):
        for parameter in module.parameters(recurse=False):
            nn.init.normal_(parameter, 1.0 if isinstance(module, nn.LayerNorm) else 0.0, 0.2)


class TorchModel(TorchPreTrained):
    def __init__(self, config):
        super().__init__(config)
        width = config.hidden_size
        self.words = nn.Embedding(config.vocab_size, width)
        self.positions = nn.Embedding(config.max_position_embeddings, width)
        layer = nn.TransformerEncoderLayer(
            width,
            config.num_attention_heads,
            config.intermediate_size,
            activation=config.hidden_act,
            batch_first=True,
            norm_first=config.norm_first,
        )
        norm = nn.LayerNorm(width) if config.norm_first else None
        self.encoder = nn.TransformerEncoder(layer, config.num_hidden_layers, norm, enable_nested_tensor=False)
        self.post_init()

    def forward(self, input_ids=None, attention_mask=None, inputs_embeds=None, position_ids=None, **_):
        words = self.words(input_ids) if inputs_embeds is None else inputs_embeds
        if position_ids is None:
            position_ids = torch.arange(words.shape[1], device=words.device)[None]
        is_padding = None if attention_mask is None else attention_mask == 0
        hidden = self.encoder(words + self.positions(position_ids), src_key_padding_mask=is_padding)
        return BaseModelOutput(last_hidden_state=hidden)


class TorchForSequenceClassification(TorchPreTrained):
    def __init__(self, config):
        super().__init__(config)
        self.body = TorchModel(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, input_ids=None, attention_mask=None, **options):
        hidden = self.body(input_ids, attention_mask, **options).last_hidden_state
        return SequenceClassifierOutput(logits=self.classifier(hidden[:, 0]))


AutoConfig.register("torch-classifier", TorchConfig)
AutoModelForSequenceClassification.register(TorchConfig, TorchForSequenceClassification)
