"""A rule, and the composite that it makes: AttnLRP, but no relevance goes through the softmax of attention."""

from dataclasses import replace
from functools import partial

from closelook.lrp_core.methods.gradients import explain_many
from closelook.lrp_core.rules import ATTNLRP, SoftmaxRule

CONSTANT = SoftmaxRule("constant", lambda gradient, scores, weights, hidden: 0 * gradient)
OPEN_LOOP = replace(ATTNLRP, name="open_loop", softmax=CONSTANT)

explain = partial(explain_many, composite=OPEN_LOOP)
