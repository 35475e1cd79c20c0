"""Plumbline's core: pure Python, standard library only (3.9+), shipped to targets by Ansible.

On the controller the same package is installed as ``plumbline``. Nothing outside of
``plumbline.analysis`` may import a third-party package or ``plumbline.analysis`` itself.
"""
__version__ = "0.1.0"
