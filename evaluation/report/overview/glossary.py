"""The terms of the report, the documentation (docs/glossary.md) and the code, each with its meaning."""

TERMS: dict[str, str] = {
    "relevance": "The share of the explained number that a method attributes to a token, patch, head, layer or neuron.",
    "explained number": "A logit of the model, the difference of two, or a log-probability; of an answer, the sum over "
    "its tokens; of a regressor, its score.",
    "target": "The token or label whose logit is explained.",
    "foil": "A token or label that the target is compared with: why the target rather than the foil.",
    "contrastive explanation": "An explanation of the target's logit minus the foil's.",
    "evidence": "The tokens that are known to decide a prediction, such as the subject of a verb.",
    "readout position": "The position in the model's input at whose output the prediction is read.",
    "full and partial embeddings": "Relevance of the whole input of the first layer, or of its word embedding alone, "
    "without the embedding of the position.",
    "residual": "The sum of relevance minus the explained number, or minus its change from the method's baseline: what "
    "biases take, for example, with its sign reversed.",
    "conservation": "The property that relevance sums to the explained number, but for a residual of known origin.",
    "composite": "An assignment of rules to the layers of a model.",
    "eager attention": "The implementation of attention that materialises the attention weights.",
    "pointing game": "The share of samples in which the most relevant token is evidence.",
    "deletion curve (MoRF)": "The model's score while tokens are removed, the most relevant first.",
    "insertion curve (LeRF)": "The model's score while tokens are removed, the least relevant first.",
    "faithfulness (ΔA)": "The area between both curves: how much earlier the score falls if the most relevant tokens "
    "are removed first.",
    "ablation": "Removing tokens, sources, heads or neurons from a computation to measure the effect.",
    "activation patching": "Replacing an activation by that of another input to measure the effect.",
    "logit lens": "The vocabulary's logits that a hidden state or a neuron's output vector has under the unembedding.",
    "max-activating examples": "The passages of a corpus that activate a neuron most.",
    "baseline": "The input, or the method, that others are compared with, such as relevance drawn at random.",
    "chance": "The expected score of relevance drawn at random.",
    "control": "A test of whether relevance depends on the model, such as one that randomises its weights.",
    "sample": "A text, pair or image with its target, and the foil and evidence where it has them.",
    "source": "A passage, sentence or turn of a prompt from which an answer is made; of samples, the data set from "
    "which they are read (`tasks.NAME.source`).",
    "cluster": "Samples that resemble each other, such as those of an article; intervals and tests count clusters.",
    "variant": "The explanation, embeddings, tokens (all, or without special ones) and part of the text of a score.",
    "pass": "A forward pass of a model over a batch, with its backward passes; methods may share one, and so its cost.",
    "root": "The folder or URL under which a run stores all its files.",
    "driver": "The process that directs a run: it plans, and gives units of work to workers.",
    "stage": "A step of a run, such as prepare, attribute or report, which is a command too.",
    "view": "A sample as one tokenizer reads it; in `lrp_core`, a model with the family that describes its modules.",
    "cell": "A method's relevance for all samples of a model and task, with its explanation, embeddings and precision.",
    "unit of work": "Samples that a worker computes and commits at once.",
    "shard": "The file that a unit of work writes for an artifact.",
    "artifact": "A result of a run, with a manifest that lists its files and says whether it is complete.",
    "reject": "A sample that could not be computed, stored with its reason.",
}
