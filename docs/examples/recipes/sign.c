INLINE vec sign(vec x, float a, float b)
{
    (void)a, (void)b;
    const vec one = 1.f - (vec){0};
    return choose(x > 0.f, one, choose(x < 0.f, -one, x));
}
