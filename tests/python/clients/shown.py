"""What agents are given to look at: a picture and a document, each as base64."""

import base64

PICTURE = (
    "iVBORw0KGgoAAAANSUhEUgAAABAAAAAQCAIAAACQkWg2AAAAFElEQVR4nGM4QSJgGNUwqmH4agAA"
    "+NpYH65gHiQAAAAASUVORK5CYII="
)
DOCUMENT = base64.b64encode(b"%PDF-1.4\n% Two lines.\n%%EOF\n").decode()
QUESTION = "What is the weather in the city that these show?"
