"""Fine-tune public weights on a folder of labelled pictures (one sub-folder a class), and name new ones.

    python examples/finetune_photos.py WEIGHTS FOLDER [PICTURE …]
"""

import sys

import vitrail

weights, folder, *pictures = sys.argv[1:]
result = vitrail.finetune(weights, folder, overrides=["eval.every_epochs=1"], say=print)
print(result)  # accuracy on held-out pictures with its interval, what to expect, where everything is

for answer in vitrail.predict(str(result.weights), pictures, top=3) if pictures else ():
    print(answer)
