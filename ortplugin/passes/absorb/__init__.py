"""What is pointwise before and after an operator becomes a part of its program."""
