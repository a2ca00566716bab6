"""dspy: a prediction and a ReAct loop, both by prompts in dspy's own format."""

import dspy

from task import MODEL, QUESTION, base_url, get_weather, show

dspy.configure(lm=dspy.LM(f"openai/{MODEL}", api_base=base_url(), api_key="none", cache=False))
predicted = dspy.Predict("question -> answer")(question=QUESTION)
reacted = dspy.ReAct("question -> answer", tools=[get_weather])(question=QUESTION)
show(
    {
        "predicted": predicted.toDict(),
        "reacted": [reacted.answer, str(reacted.trajectory)],
    }
)
