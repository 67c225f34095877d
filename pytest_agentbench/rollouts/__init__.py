"""The only room where agent, model, tools and scorers meet."""
