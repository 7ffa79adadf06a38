"""The description of a classifier around torch's own encoder, whose norms a field of its config places."""

from dataclasses import replace

from closelook.lrp_core.families.base import FamilyVariant
from closelook.lrp_core.families.layout import LabelHead
from closelook.lrp_core.families.torch_encoder import TORCH_ENCODER

PRE_NORM = replace(
    TORCH_ENCODER,
    name="torch-classifier",
    classes="tests.torch_modeling",
    blocks="body.encoder.layers",
    final_norm="body.encoder.norm",
    token_embedding="body.words",
    position_embedding="body.positions",
    label_head=LabelHead("classifier"),
)
POST_NORM = replace(PRE_NORM, norm_order="post", final_norm=None)
TORCH_CLASSIFIER = replace(PRE_NORM, variants=(FamilyVariant("norm_first", False, POST_NORM),))
