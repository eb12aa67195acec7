"""What stands in for Horovod where it is not installed: see torch.py."""
