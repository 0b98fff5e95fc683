"""The passes, one file each. The order in which they run is PIPELINE, in ortplugin/optimizer.py."""
