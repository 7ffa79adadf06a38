"""Samples whose answer is explained as a whole: prompts, chats, the units that they are made of, and their views."""
