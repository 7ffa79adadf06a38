"""Opens models: reads their files and adapters, and makes views of them."""
