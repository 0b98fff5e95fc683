"""What passes ask of a graph and the ways in which they edit it. It knows operators of ours by their domain alone."""
