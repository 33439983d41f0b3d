"""Scripted fakes and small real parts for tests of environments, policies and trainers."""
