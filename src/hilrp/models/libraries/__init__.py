"""How each model library names, builds and feeds its models. One file per library, all with the same functions.

``names()`` lists the models, ``find(name)`` returns the library's own spelling of a name or ``None``, and
``recipe(name, pretrained, size)`` makes the model with what it takes and what of its output is explained. ``trained()``
lists those that ``load(name, checkpoint)`` can make ready for pictures. Where a coverage run needs a choice, there is
also ``kinds()``, one model of each kind (timm: ``modules()``, of which it takes the smallest).
"""
