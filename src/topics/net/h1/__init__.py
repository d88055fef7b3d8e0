"""HTTP/1.1 without I/O: `H1Reader` turns bytes into heads and bodies, `H1Renderer` turns responses into bytes.

Field syntax is checked by llhttp (through httptools); everything around it that a proxy could read differently than
we do is checked here, and the answer to a doubt is always 400 and the end of the connection.
"""
