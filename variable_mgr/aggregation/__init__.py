"""How the gradients of towers become one: stages around an all-reduce."""
