"""A classifier around torch's own encoder, whose parts are not described."""

from closelook.lrp_core.families.generic import GenericFamily
from closelook.lrp_core.records.kinds import CLASSIFIER

TORCH_CLASSIFIER = GenericFamily(name="torch-classifier", kind=CLASSIFIER, classes="tests.torch_modeling")
