"""Drop-ins for SHAP, captum, pytorch-grad-cam and Quantus, with relevance that adds up on any architecture.

Each module has the names and arguments of one package, so that a script changes one import line:

- `hilrp.compat.shap`: ``DeepExplainer``, and ``GradientExplainer`` in its form.
- `hilrp.compat.captum`: ``Relevance`` and ``LayerRelevance``.
- `hilrp.compat.gradcam`: ``HiLRPCAM``.
- `hilrp.compat.quantus`: ``explain_func``, for its metrics.

Arguments that make no sense here raise an error that says what to use instead. The packages themselves are imported
only where they are used: install them with ``pip install 'hilrp[compat]'``, but for Quantus, of which nothing is
imported.
"""
