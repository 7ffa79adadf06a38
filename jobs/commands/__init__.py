"""Commands that compute nothing: status, cost, garbage, audit, the records there are; and one explained sentence."""
