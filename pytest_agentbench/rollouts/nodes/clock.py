class NodeClock:
    def before(self, a, b):
        pass

    def after(self, a, b):
        pass

    def place(self, rollout):
        return rollout
