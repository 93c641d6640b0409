"""Ways to hand a toolbox to whatever runs the model: each a module, and each small."""
