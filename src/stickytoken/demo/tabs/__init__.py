"""The tabs of the app: what they show, and what happens when somebody uses them."""
