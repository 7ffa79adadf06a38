"""Rules on torch operations: the explanation follows what ran. A file each rule; `table.TABLE` lists the operations."""

from closelook.lrp_core.operations import attention, elementwise, linear, norms, products, softmax, views
from closelook.lrp_core.operations.explain import Explanation, RootRelevance, explain_operations

#: The modules of rules, which fill the table.
RULES = (attention, elementwise, linear, norms, products, softmax, views)

__all__ = ["RULES", "Explanation", "RootRelevance", "explain_operations"]
