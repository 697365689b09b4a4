"""Fine-tune public weights on a folder of labelled pictures (one sub-folder a class), then name new ones.

python examples/finetune_photos.py WEIGHTS FOLDER MINUTES [PICTURE …]
"""

import sys

import vitrail
from vitrail.train.proposal import Wishes

weights, folder, minutes, *pictures = sys.argv[1:]
result = vitrail.finetune(weights, folder, wishes=Wishes(minutes=float(minutes)), say=print)
print(result)  # accuracy on held-out pictures with its interval, what to expect, where everything is

for answer in vitrail.predict(str(result.weights), pictures, top=3).rows if pictures else ():
    print(answer)
