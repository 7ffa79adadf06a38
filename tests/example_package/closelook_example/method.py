"""Two methods: how large a token's embedding is, with an option, and one of the rules in the module beside this one."""

from closelook.lrp_core import Method, Option, without_sum
from closelook.lrp_core.records.capabilities import GRADIENTS


def explain(view, batch, requests, *, power):
    """The norm of each token's embedding, raised to `power`, whatever is explained."""
    batch = batch.to(view.device)
    token = view.tokens(batch)  # [B, T, D]
    logits = view.logits(batch).detach()  # [B, 2], of target and foil
    norms = (token.detach().norm(dim=-1) ** power).masked_fill(batch.attention_mask == 0, 0)  # [B, T]
    return {request: without_sum(norms, logits) for request in requests}


EMBEDDING_POWER = Method(
    "embedding_power",
    version=1,
    label="Embedding norm",
    explain=explain,
    family="representation",
    options=(Option("power", 1.0, "what the norm is raised to", low=0.5, high=4),),
    explanations=("none",),
    embeddings=("none",),
    conserves=False,
    about="the norm of a token's embedding",
)
OPEN_LOOP = Method(
    "open_loop",
    version=1,
    label="AttnLRP, constant softmax",
    explain="closelook_example.rule:explain",  # imported with torch when it is first called
    needs=(GRADIENTS,),
    gives=("tokens", "heads"),
    rules="open_loop",
    about="as attnlrp, but attention weights are taken as they are",
)
