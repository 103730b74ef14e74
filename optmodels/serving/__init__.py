"""What a deployment can do: static batches as an instance file asks for them, their operating points, queueing."""
