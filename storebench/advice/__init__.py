"""What a run tells the person who began it: the choices for some images, and what stores ask of a storage system."""
