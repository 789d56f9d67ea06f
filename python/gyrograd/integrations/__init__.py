"""Models of other packages, switched to gyrograd's operators by one explicit call and back by another.

gyrograd.integrations.transformers and gyrograd.integrations.diffusers each have `switch_to_gyrograd`. This package
imports neither.
"""
